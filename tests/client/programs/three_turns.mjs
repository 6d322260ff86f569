// The same with the OpenAI SDK for Node: `three_turns.mjs whole|stream BASE_URL KEY QUESTION CORRECTION PRAISE`
import OpenAI from "openai";

const [how, baseURL, apiKey, ...said] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey });

async function ask(messages) {
  if (how === "whole") {
    const answer = await client.chat.completions.create({ model: "instar", messages });
    return answer.choices[0].message;
  }
  const stream = await client.chat.completions.create({ model: "instar", messages, stream: true });
  let content = "";
  for await (const chunk of stream) content += chunk.choices[0]?.delta?.content ?? "";
  return { role: "assistant", content };
}

const messages = [];
const answers = [];
for (const content of said) {
  messages.push({ role: "user", content });
  const answer = await ask(messages);
  messages.push(answer);
  answers.push(answer.content);
}
console.log(JSON.stringify({ answers }));
